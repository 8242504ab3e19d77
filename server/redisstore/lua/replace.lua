-- Changes the value of a door, from the one expected, or from none if that may
-- be, to another, or to none if that is empty.

local expected, value, lifetime, or_none = ARGV[1], ARGV[2], ARGV[3], ARGV[4] == 'or none'

local found = redis.call('GET', KEYS[1])
if found ~= expected and (found or not or_none) then
	return {0}
end
if value == '' then
	redis.call('DEL', KEYS[1])
else
	redis.call('SET', KEYS[1], value, 'PX', lifetime)
end
return {1}

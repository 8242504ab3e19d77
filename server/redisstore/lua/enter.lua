-- Sets the value of a door unless it has one, which is then returned together
-- with the milliseconds for which it still stands.

local value, lifetime = ARGV[1], ARGV[2]

if redis.call('SET', KEYS[1], value, 'NX', 'PX', lifetime) then
	return {}
end
return {redis.call('GET', KEYS[1]), redis.call('PTTL', KEYS[1])}

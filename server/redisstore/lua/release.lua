-- Ends the caller's attempt without an answer, if it still holds the record.

local ttl = ARGV[4]

if not mine then
	return reply(0)
end
give_up()
redis.call('PEXPIRE', key, ttl)
return {1}

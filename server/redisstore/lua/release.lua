-- Ends the caller's attempt without an answer, if it still holds the record.

local ttl = ARGV[4]

if not mine then
	return reply(0)
end
redis.call('HSET', key, 'status', 'failed')
redis.call('HDEL', key, 'token', 'lease_until', 'response')
redis.call('PEXPIRE', key, ttl)
return {1}

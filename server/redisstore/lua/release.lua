-- Ends the caller's attempt without an answer, if it still holds the record.

local ttl = ARGV[4]

if exists and record.status == 'processing' and record.token == token then
	redis.call('HSET', key, 'status', 'failed')
	redis.call('HDEL', key, 'token', 'lease_until', 'response')
	redis.call('PEXPIRE', key, ttl)
end
return {1}

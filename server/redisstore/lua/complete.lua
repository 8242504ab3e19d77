-- Stores the final response, unless somebody else has ended the operation. It
-- asks for the operation and not for the token: who outlived his lease has done
-- the work all the same. A record that Redis has forgotten is put back by an
-- owner.

local attempt, response, ttl = ARGV[4], ARGV[5], ARGV[6]

if exists and (record.status == 'completed' or record.operation ~= operation) or not exists and not known then
	return reply(0)
end
if not exists then
	redis.call('HSET', key, 'operation', operation, 'attempt', attempt, 'created_at', now, 'fingerprint', fingerprint)
end
redis.call('HSET', key, 'status', 'completed', 'completed_at', now, 'response', response)
redis.call('HDEL', key, 'token', 'lease_until')
redis.call('PEXPIRE', key, ttl)
return {1}

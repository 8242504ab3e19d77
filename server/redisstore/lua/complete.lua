-- Stores the response, or reports the record if somebody else has ended the
-- operation. It asks for the operation and not for the token: an owner that
-- outlived its lease has done the work all the same. A record that Redis has
-- forgotten is put back.

local attempt, response, ttl = ARGV[4], ARGV[5], ARGV[6]

if exists and (record.status == 'completed' or record.operation ~= operation) then
	return report()
end
if not exists then
	redis.call('HSET', key, 'operation', operation, 'attempt', attempt, 'fingerprint', fingerprint)
end
redis.call('HSET', key, 'status', 'completed', 'response', response)
redis.call('HDEL', key, 'token', 'lease_until')
redis.call('PEXPIRE', key, ttl)
return {1}

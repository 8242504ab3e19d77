-- Reports the record and its times, of which those that it has not got are 0.

if not exists then
	return {0}
end
local completed_at = redis.call('HGET', key, 'completed_at')
local r = reply(1)
return {1, now, now + redis.call('PTTL', key), record.created_at, completed_at or 0, record.lease_until or 0, unpack(r, 2, 7)}

-- Claims the key for an operation or for its next attempt. The operation in ARGV
-- is for a key without record. A claim that is repeated, because its reply was
-- lost, is known by its token. Success replies the operation, the attempt, and
-- whether that was taken over from a lost owner.

local lease, ttl, rerun = ARGV[4], ARGV[5], ARGV[6] == 'rerun'

if mine then
	return {1, record.operation, record.attempt, 0}
end

local lost = processing and lease_left <= 0
local claimable = not exists or record.status == 'failed' or lost and rerun
if reused or not claimable then
	return reply(0)
end

local attempt = 1
if exists then
	operation, attempt = record.operation, record.attempt + 1
end
hold(operation, attempt, lease, ttl)
redis.call('HDEL', key, 'response')
return {1, operation, attempt, lost and 1 or 0}

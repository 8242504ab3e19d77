-- The head of every script on a record, which is a hash:
--
--   operation, attempt, status   as in server.Record
--   fingerprint                  a byte of version, then the sum
--   token                        of the claim that holds it
--   created_at, completed_at, lease_until
--                                in milliseconds since 1970
--   response                     the final one, or an interim one while processing
--
-- KEYS[1] is the record. ARGV begins with the caller's fingerprint, "" if he
-- does not know it, operation and token. Durations are in milliseconds. Replies
-- begin with 1 for success, or with 0, after which comes the record if there is
-- one.

local key = KEYS[1]
local fingerprint, operation, token = ARGV[1], ARGV[2], ARGV[3]

local names = {'operation', 'attempt', 'status', 'fingerprint', 'token', 'lease_until', 'created_at', 'response'}
local values = redis.call('HMGET', key, unpack(names))
local record = {}
for i, name in ipairs(names) do
	record[name] = values[i] -- false if it has none
end
local exists = record.operation
local processing = exists and record.status == 'processing'
local mine = processing and record.token == token

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local lease_left = (record.lease_until or now) - now

-- Fingerprints of different versions prove nothing.
local known = fingerprint ~= ''
local reused = exists and known and record.fingerprint:byte() == fingerprint:byte() and record.fingerprint ~= fingerprint

local function reply(success)
	if not record.operation then
		return {success}
	end
	return {success, record.operation, record.attempt, record.status, lease_left, reused and 1 or 0, record.response}
end

-- hold makes the caller the owner of an attempt until lease has passed.
local function hold(operation, attempt, lease, ttl)
	redis.call('HSET', key, 'operation', operation, 'attempt', attempt, 'status', 'processing', 'token', token,
		'lease_until', now + lease, 'created_at', record.created_at or now, 'fingerprint', known and fingerprint or record.fingerprint)
	redis.call('PEXPIRE', key, lease + ttl)
end

-- give_up leaves the operation to its next attempt.
local function give_up()
	redis.call('HSET', key, 'status', 'failed')
	redis.call('HDEL', key, 'token', 'lease_until', 'response')
end

-- Gives the caller's attempt an interim response and a lease that ends no earlier
-- than it did. A record that Redis has forgotten is put back. Success replies the
-- record.

local attempt, response, lease, ttl = ARGV[4], ARGV[5], ARGV[6], ARGV[7]

if exists and not mine then
	return reply(0)
end
lease_left = math.max(lease, mine and lease_left or 0)
hold(operation, attempt, lease_left, ttl)
redis.call('HSET', key, 'response', response)
record.operation, record.attempt, record.status, record.response = operation, attempt, 'processing', response
return reply(1)

-- Moves the end of the caller's lease. A record that Redis has forgotten is put
-- back by an owner.

local attempt, lease, ttl = ARGV[4], ARGV[5], ARGV[6]

if not mine and (exists or not known) then
	return reply(0)
end
hold(operation, attempt, lease, ttl)
return {1}

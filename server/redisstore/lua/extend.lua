-- Moves the end of the caller's lease, and returns 0 if that is lost. A record
-- that Redis has forgotten is put back.

local attempt, lease, ttl = ARGV[4], ARGV[5], ARGV[6]

if exists and (record.status ~= 'processing' or record.token ~= token) then
	return {0}
end
hold(operation, attempt, lease, ttl)
return {1}

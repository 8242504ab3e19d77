-- Gives up the operation in ARGV, if its owner was lost. It expires as it would
-- have otherwise.

if not processing or record.operation ~= operation or lease_left > 0 then
	return {0}
end
give_up()
return {1}

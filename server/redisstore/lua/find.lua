-- Reports the record.

return reply(exists and 1 or 0)

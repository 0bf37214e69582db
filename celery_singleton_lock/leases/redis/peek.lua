-- Answers for each key the server's time in µs and the record, see `record_of`
local now = text(clock()) .. ','

return for_each_key(function(key)
  return now .. record_of(key)
end)

-- Answers for each key the node's time in µs, the record, see `record_of`, and 1 if its fence is not its owner's
local now = text(clock()) .. ','

return for_each_key(function(key)
  local pending = redis.call('HMGET', key, 'pending', 'fence')
  return now .. record_of(key) .. (pending[1] and pending[1] == pending[2] and ',1' or ',0')
end)

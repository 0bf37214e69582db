-- Answers for each key the server's time in µs and the record: [field, value, ...]
local now = text(clock()) .. ','

return for_each_key(function(key)
  return now .. cjson.encode(redis.call('HGETALL', key))
end)

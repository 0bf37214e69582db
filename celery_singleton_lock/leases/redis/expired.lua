-- The records in each index whose lease ran out, oldest first. Answers the server's time in µs and
-- [[key, record], ...], see `record_of`
local now = clock()

return for_each_key(function(index, at_most)
  local found = {}
  for _, key in ipairs(redis.call('ZRANGEBYSCORE', index, '-inf', text(now), 'LIMIT', 0, at_most)) do
    if redis.call('EXISTS', key) == 1 then
      found[#found + 1] = '[' .. cjson.encode(key) .. ',' .. record_of(key) .. ']'
    else
      redis.call('ZREM', index, key)
    end
  end
  return text(now) .. ',[' .. table.concat(found, ',') .. ']'
end)

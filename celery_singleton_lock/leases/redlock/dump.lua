-- Answers for each key the node's time in µs, how many ms it is kept (-1: for ever), and what is in it: a
-- hash as [field, value, ...], a sorted set as [member, score, ...]
local now = text(clock()) .. ','

return for_each_key(function(key)
  local kind = redis.call('TYPE', key).ok
  local inside = {}
  if kind == 'hash' then inside = redis.call('HGETALL', key) end
  if kind == 'zset' then inside = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES') end
  return now .. text(redis.call('PTTL', key)) .. ',' .. (#inside > 0 and cjson.encode(inside) or '[]')
end)

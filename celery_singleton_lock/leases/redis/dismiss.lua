-- Take each record out of its index, if its lease ran out and is that of this fence. Answers 1 done | 0 not
local now = clock()

return for_each_key(function(key, fence, index)
  local score = redis.call('ZSCORE', index, key)
  if not score or tonumber(score) > now or redis.call('HGET', key, 'fence') ~= fence then return '0' end
  redis.call('ZREM', index, key)
  return '1'
end)

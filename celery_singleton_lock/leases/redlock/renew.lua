-- Extend the lease under each key, if it is the owner's and has not run out. Answers 1 renewed | 2 refused |
-- 3 forgotten: no memory of this grant, nor of a later one | 4 it ran out, and nobody came since | 5 it was
-- given back
local now = clock()

return for_each_key(function(key, owner, fence, ttl, index, expired_kept_ms)
  local record = redis.call('HMGET', key, 'owner', 'fence', 'until', 'position', 'pending', 'released')
  local counter = record[2] or '0'
  if record[1] == owner and counter == fence and record[5] ~= counter and record[3] ~= '0' then
    if tonumber(record[3]) <= now then return '4' end
    redis.call('HSET', key, 'until', text(now + ttl))
    list(index, key, text(now + ttl))
    local ms = math.ceil(ttl / 1000) + expired_kept_ms
    if not record[4] or redis.call('PTTL', key) < ms then redis.call('PEXPIRE', key, ms) end
    return '1'
  end
  if record[6] == fence then return '5' end
  return tonumber(counter) < tonumber(fence) and '3' or '2'
end)

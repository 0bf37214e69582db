-- Extend the lease under each key, if it is the owner's and has not run out.
-- Answers 1 renewed | 2 refused | 3 forgotten: no memory of this grant, nor of a later one
local now = clock()

local function renew(key, owner, fence, ttl, index, expired_kept_ms)
  local record = redis.call('HMGET', key, 'owner', 'fence', 'until', 'position')
  if record[1] == owner and record[2] == fence and tonumber(record[3] or 0) > now then
    redis.call('HSET', key, 'until', text(now + ttl))
    list(index, key, text(now + ttl))
    local ms = math.ceil(ttl / 1000) + expired_kept_ms
    if not record[4] or redis.call('PTTL', key) < ms then redis.call('PEXPIRE', key, ms) end
    return '1'
  end
  if tonumber(record[2] or 0) < tonumber(fence) then return '3' end
  return '2'
end

return for_each_key(renew)

-- Write back leases that the server forgot. Answers 1 written | 0 a later grant, or this one, is known
local now = clock()

local function restore(key, owner, fence, ttl, note, index, expired_kept_ms)
  local record = redis.call('HMGET', key, 'fence', 'position')
  if tonumber(record[1] or 0) >= tonumber(fence) then return '0' end
  redis.call('HSET', key, 'owner', owner, 'fence', fence, 'note', note,
    'until', text(now + ttl), 'since', text(now))
  list(index, key, text(now + ttl))
  local ms = math.ceil(ttl / 1000) + expired_kept_ms
  if not record[2] or redis.call('PTTL', key) < ms then redis.call('PEXPIRE', key, ms) end
  return '1'
end

return for_each_key(restore)

-- Write back leases that the node does not know, or knows as run out. Answers 1 written | 0 a later grant is
-- known, or it was given back, or somebody else is asking
local now = clock()

return for_each_key(function(key, owner, fence, ttl, note, index, expired_kept_ms)
  local record = redis.call('HMGET', key, 'owner', 'fence', 'until', 'position', 'pending')
  local counter, held_until = record[2] or '0', tonumber(record[3] or 0)
  local is_mine = record[1] == owner and counter == fence and record[5] ~= counter and held_until > 0
  local is_in_the_way = held_until > now and record[1] ~= owner
  if not is_mine and (tonumber(counter) >= tonumber(fence) or is_in_the_way) then return '0' end
  redis.call('HSET', key, 'owner', owner, 'fence', fence, 'note', note,
    'until', text(now + ttl), 'since', text(now), 'claim', '')
  list(index, key, text(now + ttl))
  local ms = math.ceil(ttl / 1000) + expired_kept_ms
  if not record[4] or redis.call('PTTL', key) < ms then redis.call('PEXPIRE', key, ms) end
  return '1'
end)

-- Phase 2: give the lease under each key its fence, if it is still the owner's by this attempt, and if that
-- raises the fence. Answers 1 confirmed | 0 not
local now = clock()

return for_each_key(function(key, owner, fence, ttl, index, call, attempt)
  local record = redis.call('HMGET', key, 'owner', 'claim', 'fence', 'until', 'pending')
  local claim = call .. ' ' .. attempt
  local is_claimed = record[2] == claim or record[2] == claim .. ' lapsed'
  if record[1] ~= owner or not is_claimed or record[4] == '0' then return '0' end
  if tonumber(record[3]) >= tonumber(fence) then
    -- Sent twice.
    return record[3] == fence and record[5] ~= fence and '1' or '0'
  end
  local until_text = text(now + ttl)
  redis.call('HSET', key, 'fence', fence, 'call', call, 'until', until_text, 'since', text(now))
  list(index, key, until_text)
  return '1'
end)

-- Extend the lease under KEYS[1], if it is the owner's and has not run out.
-- Answers 1 renewed | 2 refused | 3 forgotten: no memory of this grant, nor of a later one
local owner, fence, ttl, expired_kept_ms = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

local record = redis.call('HMGET', KEYS[1], 'owner', 'fence', 'until', 'position')
if record[1] == owner and record[2] == fence and tonumber(record[3] or 0) > now then
  redis.call('HSET', KEYS[1], 'until', string.format('%.0f', now + ttl))
  local ms = math.ceil(ttl / 1000) + expired_kept_ms
  if not record[4] or redis.call('PTTL', KEYS[1]) < ms then redis.call('PEXPIRE', KEYS[1], ms) end
  return 1
end
if tonumber(record[2] or 0) < tonumber(fence) then return 3 end
return 2

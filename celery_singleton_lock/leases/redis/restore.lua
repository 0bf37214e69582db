-- Write back a lease that the server forgot. Answers 1 written | 0 a later grant, or this one, is known
local owner, fence, ttl, note, expired_kept_ms =
  ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4], tonumber(ARGV[5])
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

local record = redis.call('HMGET', KEYS[1], 'fence', 'position')
if tonumber(record[1] or 0) >= tonumber(fence) then return 0 end
redis.call('HSET', KEYS[1], 'owner', owner, 'fence', fence, 'note', note,
  'until', string.format('%.0f', now + ttl), 'since', string.format('%.0f', now))
local ms = math.ceil(ttl / 1000) + expired_kept_ms
if not record[2] or redis.call('PTTL', KEYS[1]) < ms then redis.call('PEXPIRE', KEYS[1], ms) end
return 1

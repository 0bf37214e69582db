-- Take the lease under KEYS[1] from whoever has it. Answers {now, field, value, ...} as it was, or nil
local note, channel = cjson.decode(ARGV[1]), ARGV[2]
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

local record = redis.call('HMGET', KEYS[1], 'until', 'parked_until', 'fence', 'awaited', 'owner')
if tonumber(record[1] or 0) == 0 and tonumber(record[2] or 0) <= now then return false end
local before = redis.call('HGETALL', KEYS[1])
-- The fence moves, so that the holder can neither renew nor finish: it was taken out.
local fence = math.max(tonumber(record[3]) + 1, now)
note.holder = record[5]
redis.call('HSET', KEYS[1], 'fence', string.format('%.0f', fence), 'until', '0', 'note', cjson.encode(note),
  'since', string.format('%.0f', now))
redis.call('HDEL', KEYS[1], 'heir', 'parked_until', 'awaited')
if record[4] then redis.call('PUBLISH', channel, '') end
return {string.format('%.0f', now), before}

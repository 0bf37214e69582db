-- Give the lease under KEYS[1] back, with a position if ARGV[4] is one. Answers 1 written | 0 lost
local owner, fence, is_held, position, outcome, keep_ms, park, heir, undo, channel =
  ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[5], tonumber(ARGV[6]),
  tonumber(ARGV[7]), ARGV[8], ARGV[9], ARGV[10]

local record = redis.call('HMGET', KEYS[1],
  'owner', 'fence', 'position', 'awaited', 'parked_until', 'released')
-- It may have been given back before, by a call whose reply was lost.
if record[6] == fence then return 1 end
local forgotten = is_held == '1' and tonumber(record[2] or 0) < tonumber(fence)
if not forgotten and (record[1] ~= owner or record[2] ~= fence) then return 0 end

redis.call('HSET', KEYS[1], 'owner', owner, 'fence', fence, 'until', '0', 'released', fence)
redis.call('HDEL', KEYS[1], 'note', 'awaited', 'call')
if undo ~= '1' then
  redis.call('HSET', KEYS[1], 'takeovers', '0')
  if park then
    local time = redis.call('TIME')
    local parked_until = time[1] * 1000000 + time[2] + park
    redis.call('HSET', KEYS[1], 'parked_until', string.format('%.0f', parked_until))
    keep_ms = keep_ms + math.ceil(park / 1000)
  elseif record[5] then
    redis.call('HDEL', KEYS[1], 'parked_until')
  end
  if heir ~= '' then
    redis.call('HSET', KEYS[1], 'heir', heir)
  elseif record[5] then
    redis.call('HDEL', KEYS[1], 'heir')
  end
  if position and position >= tonumber(record[3] or 0) then
    redis.call('HSET', KEYS[1], 'position', string.format('%.0f', position))
    if outcome ~= '' then
      redis.call('HSET', KEYS[1], 'outcome', outcome)
    else
      redis.call('HDEL', KEYS[1], 'outcome')
    end
  end
  -- The position was promised a longer life by the release that recorded it.
  if position or not record[3] or redis.call('PTTL', KEYS[1]) < keep_ms then
    redis.call('PEXPIRE', KEYS[1], keep_ms)
  end
elseif forgotten then
  redis.call('PEXPIRE', KEYS[1], keep_ms)
end
if record[4] then redis.call('PUBLISH', channel, '') end
return 1

-- Give the lease under each key back, with a position if it has one. Answers 1 written | 0 lost
local now

local function park_for(key, heir, park)
  now = now or clock()
  redis.call('HSET', key, 'parked_until', text(now + park))
  if heir ~= '' then redis.call('HSET', key, 'heir', heir) else redis.call('HDEL', key, 'heir') end
end

local function release(
  key, owner, fence, is_held, position, outcome, keep_ms, park, heir, undo, index, prefix)
  local record = redis.call('HMGET', key,
    'owner', 'fence', 'position', 'awaited', 'parked_until', 'released', 'takeovers')
  -- It may have been given back before, by a call whose reply was lost.
  if record[6] == fence then return '1' end
  local is_mine = record[1] == owner and record[2] == fence
  local forgotten = not is_mine and is_held == '1' and tonumber(record[2] or 0) < tonumber(fence)
  if not is_mine and not forgotten then return '0' end

  if forgotten then redis.call('HSET', key, 'owner', owner, 'fence', fence) end
  -- What is over is emptied, and not deleted: that would be one call more, for a few bytes.
  if position ~= '' and tonumber(position) >= tonumber(record[3] or 0) then
    redis.call('HSET', key, 'until', '0', 'released', fence, 'note', '', 'call', '',
      'position', position, 'outcome', outcome)
  else
    redis.call('HSET', key, 'until', '0', 'released', fence, 'note', '', 'call', '')
  end
  local is_awaited = false
  if record[4] then
    now = now or clock()
    is_awaited = tonumber(record[4]) > now
    if not is_awaited then redis.call('HDEL', key, 'awaited') end
  end
  if undo == '1' then
    if forgotten then redis.call('PEXPIRE', key, keep_ms) end
  else
    if record[7] then redis.call('HDEL', key, 'takeovers') end
    if park ~= '' then
      park_for(key, heir, park)
      keep_ms = keep_ms + math.ceil(park / 1000)
    elseif record[5] then
      redis.call('HDEL', key, 'parked_until', 'heir')
    end
    -- A position was promised a longer life by the release that recorded it.
    if position ~= '' or not record[3] or redis.call('PTTL', key) < tonumber(keep_ms) then
      redis.call('PEXPIRE', key, keep_ms)
    end
  end
  unlist(index, key)
  -- Of one that is parked only the heir could make use.
  if is_awaited and park == '' then tell_released(prefix, key) end
  return '1'
end

return for_each_key(release)

-- Give the lease under each key back, with a position if it has one. Answers 1 written | 0 lost
local now

local function append(list, first, second)
  list[#list + 1] = first
  list[#list + 1] = second
end

local function release(
  key, owner, fence, is_held, position, outcome, keep_ms, park, heir, undo, index, prefix)
  local record = redis.call('HMGET', key,
    'owner', 'fence', 'position', 'awaited', 'parked_until', 'released')
  -- It may have been given back before, by a call whose reply was lost.
  if record[6] == fence then return '1' end
  local forgotten = is_held == '1' and tonumber(record[2] or 0) < tonumber(fence)
  if not forgotten and (record[1] ~= owner or record[2] ~= fence) then return '0' end

  local written, gone = {'until', '0', 'released', fence}, {'note', 'call'}
  if forgotten then
    append(written, 'owner', owner)
    append(written, 'fence', fence)
  end
  if record[4] then append(gone, 'awaited') end
  if undo ~= '1' then
    append(gone, 'takeovers')
    if park ~= '' then
      now = now or clock()
      append(written, 'parked_until', text(now + park))
      keep_ms = keep_ms + math.ceil(park / 1000)
    elseif record[5] then
      append(gone, 'parked_until')
    end
    if heir ~= '' then
      append(written, 'heir', heir)
    elseif record[5] then
      append(gone, 'heir')
    end
    if position ~= '' and tonumber(position) >= tonumber(record[3] or 0) then
      append(written, 'position', position)
      if outcome ~= '' then append(written, 'outcome', outcome) else append(gone, 'outcome') end
    end
  end
  redis.call('HSET', key, unpack(written))
  redis.call('HDEL', key, unpack(gone))
  unlist(index, key)
  if undo == '1' then
    if forgotten then redis.call('PEXPIRE', key, keep_ms) end
  elseif position ~= '' or not record[3] or redis.call('PTTL', key) < tonumber(keep_ms) then
    -- Otherwise the position was promised a longer life by the release that recorded it.
    redis.call('PEXPIRE', key, keep_ms)
  end
  if record[4] then tell_released(prefix, key) end
  return '1'
end

return for_each_key(release)

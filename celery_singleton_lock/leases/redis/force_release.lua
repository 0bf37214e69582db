-- Take the lease under each key from whoever has it. Answers the server's time in µs and the record as it
-- was, see `record_of`; or an empty one if nobody has it
local now = clock()

return for_each_key(function(key, note, index, prefix)
  local record = redis.call('HMGET', key, 'until', 'parked_until', 'fence', 'awaited', 'owner')
  if tonumber(record[1] or 0) == 0 and tonumber(record[2] or 0) <= now then return text(now) .. ',[]' end
  local before = record_of(key)
  local told = cjson.decode(note)
  told.holder = record[5]
  -- The fence moves, so that the holder can neither renew nor finish: it was taken out.
  redis.call('HSET', key, 'fence', text(math.max(record[3] + 1, now)), 'until', '0',
    'note', cjson.encode(told), 'since', text(now))
  redis.call('HDEL', key, 'heir', 'parked_until')
  unlist(index, key)
  if record[4] then tell_released(prefix, key) end
  return text(now) .. ',' .. before
end)

-- Take back what one attempt took or was confirmed; not what the owner was granted before. Answers 1
return for_each_key(function(key, owner, call, attempt, index)
  local record = redis.call('HMGET', key, 'owner', 'claim', 'fence', 'pending', 'call')
  local claim = call .. ' ' .. attempt
  -- Who ran out before has still run out. The fence is nobody's.
  local ran_out = record[2] == claim .. ' lapsed'
  if record[1] ~= owner or not (ran_out or record[2] == claim) then return '1' end
  if record[3] ~= record[4] and record[5] ~= call then return '1' end
  redis.call('HSET', key, 'until', ran_out and '1' or '0', 'pending', record[3])
  if not ran_out then unlist(index, key) end
  return '1'
end)

-- Take back what one attempt took or was confirmed; not what the owner was granted before. Answers 1
return for_each_key(function(key, owner, call, attempt, index)
  local record = redis.call('HMGET', key, 'owner', 'claim', 'attempt', 'fence', 'pending', 'call', 'lapsed')
  if record[1] ~= owner or record[2] ~= call or record[3] ~= attempt then return '1' end
  if record[4] ~= record[5] and record[6] ~= call then return '1' end
  -- Who ran out before has still run out. The fence is nobody's.
  local ran_out = record[7] == '1'
  redis.call('HSET', key, 'until', ran_out and '1' or '0', 'pending', record[4])
  if not ran_out then unlist(index, key) end
  return '1'
end)

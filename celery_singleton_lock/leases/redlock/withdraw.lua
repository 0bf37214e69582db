-- Take back what one attempt took or was confirmed; not what the owner was granted before. Answers 1
return for_each_key(function(key, owner, call, attempt, index)
  local record = redis.call('HMGET', key, 'owner', 'claim', 'attempt', 'fence', 'pending', 'call', 'lapsed')
  if record[1] ~= owner or record[2] ~= call or record[3] ~= attempt then return '1' end
  if record[4] == record[5] then
    -- Never granted. Who ran out before has still run out.
    redis.call('HSET', key, 'until', record[7] == '1' and '1' or '0')
  elseif record[6] == call then
    redis.call('HSET', key, 'until', '0', 'released', record[4])
    redis.call('HDEL', key, 'note', 'call')
    unlist(index, key)
  end
  return '1'
end)

-- Take a new incarnation, if the node is in this one. Answers 1 | 0
return for_each_key(function(incarnation, is_in, now_in)
  if redis.call('GET', incarnation) ~= is_in then return '0' end
  redis.call('SET', incarnation, now_in)
  return '1'
end)

-- Keep a page of the book of the group under each key, unless there is a newer one. All nodes are given the
-- same version and revision. A revision that is not beyond the last one here is refused: whoever has read up
-- to that would never see it. Answers 1 done | 0 refused, version, text: as the page then stands
local now = clock()

return for_each_key(function(group, name, version, is_removed, written, revision, removed_kept)
  local pages, order, removed = group .. '.pages', group .. '.order', group .. '.removed'
  local known = redis.call('HGET', pages, name)
  if known then
    local known_version, known_text = known:match('^(%d+):(.*)$')
    if tonumber(known_version) >= tonumber(version) then
      local is_gone = redis.call('ZSCORE', removed, name)
      return '1,' .. known_version .. ',' .. cjson.encode(not is_gone and known_text)
    end
  end
  local last = redis.call('ZREVRANGE', order, 0, 0, 'WITHSCORES')[2]
  if last and tonumber(last) >= tonumber(revision) then return '0,0,false' end
  redis.call('HSET', pages, name, version .. ':' .. written)
  redis.call('ZADD', order, revision, name)
  if is_removed == '1' then
    redis.call('ZADD', removed, revision, name)
  else
    redis.call('ZREM', removed, name)
  end
  local old = redis.call('ZRANGEBYSCORE', removed, '-inf', text(now - removed_kept), 'LIMIT', 0, 100)
  for _, each in ipairs(old) do
    redis.call('HDEL', pages, each)
    redis.call('ZREM', order, each)
    redis.call('ZREM', removed, each)
  end
  return '1,' .. version .. ',' .. cjson.encode(is_removed ~= '1' and written)
end)

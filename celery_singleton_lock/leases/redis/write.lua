-- Keep a page of the book of the group under each key, unless there is a newer one; a version of 0 is a
-- change, and becomes the newest. Answers version, text: as the page then stands
local now = clock()

local function write(group, name, version, is_removed, written, removed_kept)
  local pages, order, removed = group .. '.pages', group .. '.order', group .. '.removed'
  local known = redis.call('HGET', pages, name)
  if known and version ~= '0' then
    local known_version, known_text = known:match('^(%d+):(.*)$')
    if tonumber(known_version) >= tonumber(version) then
      local is_gone = redis.call('ZSCORE', removed, name)
      return known_version .. ',' .. cjson.encode(not is_gone and known_text)
    end
  end
  local last = redis.call('ZREVRANGE', order, 0, 0, 'WITHSCORES')[2]
  local revision = text(math.max((last or 0) + 1, now))
  if version == '0' then version = revision end
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
  return version .. ',' .. cjson.encode(is_removed ~= '1' and written)
end

return for_each_key(write)

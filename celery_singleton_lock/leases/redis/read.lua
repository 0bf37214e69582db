-- The pages of the book of each group that changed after a revision, oldest first.
-- Answers revision, [name, version, text, ...]; a page that was removed has false for its text
return for_each_key(function(group, after)
  local pages, order, removed = group .. '.pages', group .. '.order', group .. '.removed'
  local revision, found = '0', {}
  local changed = redis.call('ZRANGEBYSCORE', order, '(' .. after, '+inf', 'WITHSCORES')
  for at = 1, #changed, 2 do
    local name = changed[at]
    local version, written = redis.call('HGET', pages, name):match('^(%d+):(.*)$')
    local is_gone = redis.call('ZSCORE', removed, name)
    found[#found + 1] = cjson.encode(name)
    found[#found + 1] = version
    found[#found + 1] = cjson.encode(not is_gone and written)
  end
  local last = redis.call('ZREVRANGE', order, 0, 0, 'WITHSCORES')[2]
  if last then revision = text(last) end
  return revision .. ',[' .. table.concat(found, ',') .. ']'
end)

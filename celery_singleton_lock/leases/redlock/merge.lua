-- Add to each key what another node has in it, see dump.lua: leases and counters by the newest, positions,
-- members and pages by the highest. Times are carried over to this node's clock. Answers 1
local now = clock()

local function as_table(flat)
  local by_name = {}
  for at = 1, #flat, 2 do by_name[flat[at]] = flat[at + 1] end
  return by_name
end

local function rank(record)
  local is_granted = record.pending ~= record.fence
  local is_free = (record['until'] or '0') == '0'
  return tonumber(record.fence or -1), is_granted and 1 or 0, is_free and 1 or 0
end

local function is_newer(theirs, mine)
  local a, b, c = rank(theirs)
  local x, y, z = rank(mine)
  if a ~= x then return a > x end
  if b ~= y then return b > y end
  return c > z
end

-- A time of the other node on this node's clock; 0 is none.
local function carried(time, ahead)
  local number = tonumber(time or 0)
  return number == 0 and 0 or math.max(number + ahead, 1)
end

local function is_same(mine, theirs)
  return mine.fence == theirs.fence and mine.owner == theirs.owner
    and (mine.pending == mine.fence) == (theirs.pending == theirs.fence)
end

local function replace(key, mine, theirs, ahead)
  for name in pairs(mine) do
    if name ~= 'position' and name ~= 'outcome' then redis.call('HDEL', key, name) end
  end
  for name, value in pairs(theirs) do
    if name == 'until' or name == 'parked_until' then value = text(carried(value, ahead)) end
    if name ~= 'position' and name ~= 'outcome' then redis.call('HSET', key, name, value) end
  end
end

local function merge_record(key, flat, ahead)
  local theirs, mine = as_table(flat), as_table(redis.call('HGETALL', key))
  local my_until, their_until = tonumber(mine['until'] or 0), carried(theirs['until'], ahead)
  if is_same(mine, theirs) then
    local is_free = my_until == 0 or their_until == 0
    redis.call('HSET', key, 'until', is_free and '0' or text(math.max(my_until, their_until)))
  else
    local other_until = their_until
    if is_newer(theirs, mine) then
      replace(key, mine, theirs, ahead)
      other_until = my_until
    end
    if other_until > now then
      -- One of the two may have been granted it, and nobody knows which: nobody is let in, and nobody may
      -- free it, before both are over.
      redis.call('HSET', key, 'owner', '', 'claim', '', 'until', text(math.max(my_until, their_until)),
        'pending', redis.call('HGET', key, 'fence'))
    end
  end
  if theirs.position and tonumber(theirs.position) >= tonumber(mine.position or -1) then
    redis.call('HSET', key, 'position', theirs.position)
    if theirs.outcome then redis.call('HSET', key, 'outcome', theirs.outcome) end
  end
end

local function merge_times(key, flat, ahead)
  for at = 1, #flat, 2 do
    local name, value = flat[at], flat[at + 1]
    if name ~= '' then
      value = text(math.max(carried(value, ahead), tonumber(redis.call('HGET', key, name) or 0)))
    end
    if name ~= '' or redis.call('HEXISTS', key, '') == 0 then redis.call('HSET', key, name, value) end
  end
end

local function merge_scores(key, flat, ahead)
  for at = 1, #flat, 2 do
    redis.call('ZADD', key, 'GT', text(flat[at + 1] + ahead), flat[at])
  end
end

local function merge_pages(key, flat)
  for at = 1, #flat, 2 do
    local name, value = flat[at], flat[at + 1]
    local known = redis.call('HGET', key, name)
    local version = tonumber(value:match('^(%d+):'))
    if not known or tonumber(known:match('^(%d+):')) < version then
      redis.call('HSET', key, name, value)
      redis.call('ZREM', (key:gsub('pages$', 'removed')), name)
    end
  end
end

-- After the pages: a page that was written again since is not removed.
local function merge_removals(key, flat)
  for at = 1, #flat, 2 do
    local known = redis.call('HGET', (key:gsub('removed$', 'pages')), flat[at])
    if known and tonumber(flat[at + 1]) >= tonumber(known:match('^(%d+):')) then
      redis.call('ZADD', key, flat[at + 1], flat[at])
    end
  end
end

return for_each_key(function(key, kind, inside, their_now, kept_ms)
  local flat = cjson.decode(inside)
  local ahead = now - their_now
  if kind == 'record' then
    merge_record(key, flat, ahead)
    if tonumber(kept_ms) > redis.call('PTTL', key) then redis.call('PEXPIRE', key, kept_ms) end
  elseif kind == 'members' then
    merge_times(key, flat, ahead)
  elseif kind == 'index' then
    merge_scores(key, flat, ahead)
  elseif kind == 'order' then
    merge_scores(key, flat, 0)
  elseif kind == 'pages' then
    merge_pages(key, flat)
  elseif kind == 'removed' then
    merge_removals(key, flat)
  end
  return '1'
end)

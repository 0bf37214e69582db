-- What every script begins with. It must be quick: the server does nothing else meanwhile.
-- An argument stands in ARGV once for all keys ('1') or once for each key ('n'): the last of ARGV says so,
-- with a letter for each argument. What stands for one key is then passed to a function.
local function text(number)
  -- tostring() would round numbers of the size of a time.
  return string.format('%.0f', number)
end

local function clock()
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2]
end

-- [owner, fence, ...], with false for what is not recorded.
local function record_of(key)
  return cjson.encode(redis.call('HMGET', key, 'owner', 'fence', 'until', 'since', 'position', 'outcome',
    'heir', 'parked_until', 'takeovers', 'note'))
end

-- An index, where there is one, has the keys of the leases that are held, by the time they run out.
local function list(index, key, until_text)
  if index ~= '' then redis.call('ZADD', index, until_text, key) end
end

local function unlist(index, key)
  if index ~= '' then redis.call('ZREM', index, key) end
end

local function tell_released(prefix, key)
  redis.call('PUBLISH', prefix .. 'released:' .. key:sub(#prefix + 1), '')
end

local function failure(reason, key)
  return redis.error_reply((type(reason) == 'table' and reason.err or reason) .. ': ' .. key)
end

-- Replies with what `answer` returns for each key, with commas between: the inside of a JSON array. If it
-- fails for a key (one of a foreign type), the error is the reply, and names it; all others are done all the
-- same, as though each had been asked for alone.
local function for_each_key(answer)
  local count = #KEYS
  if count == 1 then
    local is_done, said = pcall(answer, KEYS[1], unpack(ARGV))
    return is_done and said or failure(said, KEYS[1])
  end
  local given, each, shape, at = {}, {}, ARGV[#ARGV], 1
  for argument = 1, #shape do
    given[argument] = ARGV[at]
    if shape:sub(argument, argument) == 'n' then
      each[#each + 1] = {argument, at - 1}
      at = at + count
    else
      at = at + 1
    end
  end
  local answers, number, trouble = {}, 0, nil
  local function answer_the_rest()
    while number < count do
      number = number + 1
      for column = 1, #each do
        local place = each[column]
        given[place[1]] = ARGV[place[2] + number]
      end
      answers[number] = answer(KEYS[number], unpack(given))
    end
  end
  while number < count do
    local is_done, reason = pcall(answer_the_rest)
    if not is_done then trouble = trouble or failure(reason, KEYS[number]) end
  end
  return trouble or table.concat(answers, ',')
end

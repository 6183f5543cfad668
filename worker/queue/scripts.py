"""What the store does in one step: changes of a job that must not come apart or cross each other.

KEYS and ARGV of each are told above it. The line is RQ's one list; it holds the ids of the jobs
that are `queued`, sorted by priority and then by `order`. While a job is being taken up it is
`queued` and in no line: whoever wants something of it leaves a wish, as for a running one.
"""

# How many stand before a new job of a rank: all of the same or a higher priority.
PLACE = """
local function place(list, wanted)
  local rank = {urgent = 0, normal = 1, idle = 2}
  local ids = redis.call('LRANGE', list, 0, -1)
  for i = #ids, 1, -1 do
    local priority = redis.call('HGET', 'h3farm:job:' .. ids[i], 'priority')
    if (rank[priority or 'normal'] or 1) <= wanted then return i end
  end
  return 0
end
"""

# `put_in_order`: into the line, of jobs of its priority behind those of a lower order. `put`: a job
# that has been begun before goes in front of them all instead, so that it goes on first.
_PUT = """
local rank = {urgent = 0, normal = 1, idle = 2}
local function standing(id)
  local row = redis.call('HMGET', 'h3farm:job:' .. id, 'priority', 'order', 'attempts')
  return rank[row[1] or 'normal'] or 1, row[2] or '', row[3] or '0'
end
local function put_in_order(list, id)
  local mine, order = standing(id)
  local i = -1
  while true do
    local other = redis.call('LINDEX', list, i)
    if not other then return redis.call('LPUSH', list, id) end
    local its, before = standing(other)
    if its < mine or (its == mine and before <= order) then
      return redis.call('LINSERT', list, 'AFTER', other, id)
    end
    i = i - 1
  end
end
local function put(list, id)
  local mine, order, attempts = standing(id)
  if attempts == '0' then return put_in_order(list, id) end
  local i = 0
  local other = redis.call('LINDEX', list, i)
  while other and standing(other) < mine do
    i = i + 1
    other = redis.call('LINDEX', list, i)
  end
  if not other then return redis.call('RPUSH', list, id) end
  local its, first = standing(other)
  if its == mine and first <= order and first ~= '' then
    order = string.format('%012.0f', tonumber(string.sub(first, 1, 12)) - 1)
    redis.call('HSET', 'h3farm:job:' .. id, 'order', order)
  end
  return redis.call('LINSERT', list, 'BEFORE', other, id)
end
"""

# KEYS: record, line. ARGV: id. Into the line, if it is queued and not there.
INSERT = (
    _PUT
    + """
if redis.call('HGET', KEYS[1], 'state') ~= 'queued' then return 0 end
if redis.call('LPOS', KEYS[2], ARGV[1]) then return 0 end
put(KEYS[2], ARGV[1])
return 1
"""
)

# KEYS: record, line. ARGV: id. Where it stands in the line is made to fit what its record says.
REORDER = (
    _PUT
    + """
if redis.call('LREM', KEYS[2], 1, ARGV[1]) == 0 then return 0 end
put_in_order(KEYS[2], ARGV[1])
return 1
"""
)

# `change`: the state of a job with all that hangs on it. The execution ends with the state
# `running`; a wish to yield is fulfilled by the return to the queue, the others by another end.
_CHANGE = """
local function change(record, list, id, from, to, score, event)
  if from == 'queued' and to ~= 'running' then redis.call('LREM', list, 1, id) end
  redis.call('HSET', record, 'state', to)
  if to ~= 'running' then
    redis.call('HSET', record, 'execution', 'null')
    local back = to == 'queued' or to == 'interrupted'
    if not back or redis.call('HGET', record, 'wish') == '"yield"' then
      redis.call('HSET', record, 'wish', 'null')
    end
  end
  redis.call('ZREM', 'h3farm:state:' .. from, id)
  redis.call('ZADD', 'h3farm:state:' .. to, score, id)
  redis.call('PUBLISH', 'h3farm:events', event)
end
"""

# KEYS: record, line. ARGV: id, new state, allowed old states as ",a,b,", score, event, execution
# that says so ("": none), "in" to put it in line or "out" to refuse one that is in none, then
# fields and values.
MOVE = (
    _PUT
    + _CHANGE
    + """
local from = redis.call('HGET', KEYS[1], 'state')
if not from then return {0, ''} end
if ARGV[6] ~= '' and redis.call('HGET', KEYS[1], 'execution') ~= ARGV[6] then
  return {-1, from}
end
if not string.find(ARGV[3], ',' .. from .. ',', 1, true) then return {0, from} end
if ARGV[7] == 'out' and not redis.call('LPOS', KEYS[2], ARGV[1]) then return {0, from} end
change(KEYS[1], KEYS[2], ARGV[1], from, ARGV[2], ARGV[4], ARGV[5])
if #ARGV > 7 then redis.call('HSET', KEYS[1], unpack(ARGV, 8)) end
if ARGV[7] == 'in' then put(KEYS[2], ARGV[1]) end
return {1, from}
"""
)

# A wish. KEYS: record, line. ARGV: id, wish, state that it means, score, event of that, execution
# that is meant ("": any), number of fields that change at once, these, then those of the end.
# Answers what came of it ("unknown", "other", "over", "asked", "done") and the state it found.
WISH = (
    _CHANGE
    + """
local state = redis.call('HGET', KEYS[1], 'state')
if not state then return {'unknown', ''} end
if state == 'done' or state == 'failed' or state == 'cancelled' then return {'over', state} end
if ARGV[6] ~= '' and redis.call('HGET', KEYS[1], 'execution') ~= ARGV[6] then
  return {'other', state}
end
local count = 2 * tonumber(ARGV[7])
if count > 0 then redis.call('HSET', KEYS[1], unpack(ARGV, 8, 7 + count)) end
local waits = state ~= 'running'
if state == 'queued' then waits = redis.call('LREM', KEYS[2], 1, ARGV[1]) == 1 end
if not waits then
  local strength = {['"yield"'] = 1, ['"pause"'] = 2, ['"cancel"'] = 3}
  local before = redis.call('HGET', KEYS[1], 'wish')
  if strength[ARGV[2]] >= (strength[before or ''] or 0) then
    redis.call('HSET', KEYS[1], 'wish', ARGV[2])
  end
  local event = string.gsub(ARGV[5], '"' .. ARGV[3] .. '"', '"' .. state .. '"')
  redis.call('PUBLISH', 'h3farm:events', event)
  return {'asked', state}
end
if state ~= ARGV[3] then
  change(KEYS[1], KEYS[2], ARGV[1], state, ARGV[3], ARGV[4], ARGV[5])
  if #ARGV > 7 + count then redis.call('HSET', KEYS[1], unpack(ARGV, 8 + count)) end
end
return {'done', state}
"""
)

# KEYS: record. A wish to pause that has not been fulfilled yet is taken back: the job that stops
# already comes back into the queue.
UNPAUSE = """
if redis.call('HGET', KEYS[1], 'wish') ~= '"pause"' then return 0 end
local running = redis.call('HGET', KEYS[1], 'state') == 'running'
redis.call('HSET', KEYS[1], 'paused_until', 'null', 'wish', running and '"yield"' or 'null')
return 1
"""

# KEYS: record, RQ's half, line, the farm's state. ARGV: execution, progress, event ("": nothing
# new). Answers whether it is still that execution, the wish, RQ's status, the farm's state, and
# the priority of the job that is next.
REPORT = """
if redis.call('HGET', KEYS[1], 'execution') ~= ARGV[1] then return {0} end
if ARGV[2] ~= '' then
  redis.call('HSET', KEYS[1], 'progress', ARGV[2])
  redis.call('PUBLISH', 'h3farm:events', ARGV[3])
end
local first = redis.call('LINDEX', KEYS[3], 0)
local priority = first and redis.call('HGET', 'h3farm:job:' .. first, 'priority')
return {1, redis.call('HGET', KEYS[1], 'wish'), redis.call('HGET', KEYS[2], 'status'),
  redis.call('GET', KEYS[4]), priority}
"""

# A key that was given for what is forgotten may be given again.
_RELEASE = """
local function release(record, id)
  local key = record and record ~= 'null' and cjson.decode(record)
  if key and redis.call('HGET', 'h3farm:keys', key) == id then
    redis.call('HDEL', 'h3farm:keys', key)
  end
end
"""

# KEYS: the record; ARGV: id, states in which it may go as ",a,b,".
FORGET = (
    _RELEASE
    + """
local row = redis.call('HMGET', KEYS[1], 'state', 'key')
if not row[1] then return 1 end
if not string.find(ARGV[2], ',' .. row[1] .. ',', 1, true) then return 0 end
release(row[2], ARGV[1])
redis.call('DEL', KEYS[1])
redis.call('ZREM', 'h3farm:state:' .. row[1], ARGV[1])
return 1
"""
)

# KEYS: record, frames of its jobs, set of batches. ARGV: id. Not while a job of it is left.
FORGET_BATCH = (
    _RELEASE
    + """
for _, id in ipairs(redis.call('HKEYS', KEYS[2])) do
  if redis.call('EXISTS', 'h3farm:job:' .. id) == 1 then return 0 end
end
local record = redis.call('GET', KEYS[1])
if record then release(cjson.encode(cjson.decode(record).key), ARGV[1]) end
redis.call('DEL', KEYS[1], KEYS[2])
redis.call('ZREM', KEYS[3], ARGV[1])
return 1
"""
)

# KEYS: the sets of jobs that wait outside of the line. Answers a row for each that has a time.
TIMED = """
local rows = {}
for _, key in ipairs(KEYS) do
  for _, id in ipairs(redis.call('ZRANGE', key, 0, -1)) do
    local row = redis.call('HMGET', 'h3farm:job:' .. id,
      'state', 'not_before', 'window', 'paused_until')
    if row[1] == 'scheduled' or (row[4] and row[4] ~= 'null') then
      rows[#rows + 1] = {id, row[1], row[2] or 'null', row[3] or 'null', row[4] or 'null'}
    end
  end
end
return rows
"""

# KEYS: line. ARGV: ids, in their order among each other. What of them is queued and in no line gets
# in line, as `put` would put each, but in one pass over the line however many they are.
LINE_UP = """
local rank = {urgent = 0, normal = 1, idle = 2}
local rows, there, lowest = {}, {}, {}
local function row_of(id)
  local row = redis.call('HMGET', 'h3farm:job:' .. id, 'priority', 'order', 'attempts', 'state')
  return {id, rank[row[1] or 'normal'] or 1, row[2] or ''}, row[3] or '0', row[4]
end
local function see(row)
  local low = lowest[row[2]]
  if row[3] ~= '' and (not low or row[3] < low) then lowest[row[2]] = row[3] end
end
for _, id in ipairs(redis.call('LRANGE', KEYS[1], 0, -1)) do
  local row = row_of(id)
  rows[#rows + 1], there[id] = row, true
  see(row)
end
local begun, new = {}, {}
for _, id in ipairs(ARGV) do
  local row, attempts, state = row_of(id)
  if state == 'queued' and not there[id] then
    if attempts == '0' then
      new[#new + 1] = row
      see(row)
    else
      begun[#begun + 1] = row
    end
  end
end
for i = #begun, 1, -1 do
  local row = begun[i]
  local low = lowest[row[2]]
  if low and low <= row[3] then
    row[3] = string.format('%012.0f', tonumber(string.sub(low, 1, 12)) - 1)
    redis.call('HSET', 'h3farm:job:' .. row[1], 'order', row[3])
  end
  lowest[row[2]] = row[3]
end
for _, row in ipairs(begun) do new[#new + 1] = row end
if #new == 0 then return 0 end
local function before(a, b)
  if a[2] ~= b[2] then return a[2] < b[2] end
  return a[3] < b[3]
end
table.sort(new, before)
redis.call('DEL', KEYS[1])
local merged, i = {}, 1
for _, row in ipairs(rows) do
  while new[i] and before(new[i], row) do
    merged[#merged + 1] = new[i][1]
    i = i + 1
  end
  merged[#merged + 1] = row[1]
end
for k = i, #new do merged[#merged + 1] = new[k][1] end
for k = 1, #merged, 1000 do
  redis.call('RPUSH', KEYS[1], unpack(merged, k, math.min(k + 999, #merged)))
end
return #new
"""

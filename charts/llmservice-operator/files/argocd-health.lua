-- The health of an LLMService for Argo CD: docs/gitops.md says where to put it.
-- The conditions are of the last generation that the operator saw; until it saw this one they say nothing of it.
local health = {status = "Progressing", message = "Waiting for the operator"}
if obj.spec ~= nil and obj.spec.paused == true then
  health.status = "Suspended"
  health.message = "spec.paused is true"
end
if obj.status == nil or obj.status.observedGeneration ~= obj.metadata.generation then
  return health
end
local told = {}
for _, condition in ipairs(obj.status.conditions or {}) do
  told[condition.type] = condition
end
if told.Ready ~= nil then
  health.message = told.Ready.reason .. ": " .. told.Ready.message
end
if health.status == "Suspended" then
  return health
end
if told.Stalled ~= nil and told.Stalled.status == "True" then
  health.status = "Degraded"
elseif told.Ready ~= nil and told.Ready.status == "True" then
  health.status = "Healthy"
end
return health

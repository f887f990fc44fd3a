// Tools as people paste them, and the example that the settings offer.

const TOOLS_MAX = 128;

/** A tool to start from. */
export const EXAMPLE = [
  {
    type: "function",
    function: {
      name: "get_weather",
      description: "Get the current weather for a city.",
      parameters: {
        type: "object",
        properties: { city: { type: "string", description: "Name of the city" } },
        required: ["city"],
      },
    },
  },
];

/**
 * Tools as the API takes them, out of JSON: a list or a single one, with or without the `function` around it.
 * Throws an `Error` that says what is wrong.
 */
export function parseTools(text) {
  if (text.trim() === "") return [];
  let value;
  try {
    value = JSON.parse(text);
  } catch (error) {
    throw new Error(`This is not JSON: ${error.message}`);
  }
  const list = Array.isArray(value) ? value : (value?.tools ?? [value]);
  if (!Array.isArray(list) || list.length > TOOLS_MAX) throw new Error(`This is not a list of at most ${TOOLS_MAX} tools.`);
  return list.map(asTool);
}

function asTool(item, i) {
  const definition = item?.function ?? item;
  const name = definition?.name;
  if (typeof name !== "string" || name === "") throw new Error(`Tool ${i + 1} has no name.`);
  // Anthropic's form calls the schema `input_schema`.
  const { description, parameters = definition.input_schema } = definition;
  return { type: "function", function: { name, description, parameters } };
}

// The task of every client's agent, and its two tools; it prints the texts of its three answers.
export const SYSTEM = "You calculate. Use the tools.";
export const PROMPT = "What is 12 plus 30, and that times 2?";
export const THEN = ["And in words?", "Thank you."];
export const RUN = {
  add: ({ a, b }) => String(a + b),
  multiply: ({ a, b }) => String(a * b),
};
const number = { type: "integer" };
export const PARAMETERS = { type: "object", properties: { a: number, b: number }, required: ["a", "b"] };
export const NAMES = Object.keys(RUN);

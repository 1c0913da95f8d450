// An agent of the AI SDK of Vercel; INSTRUMENTATION says which of its two telemetry integrations makes spans.

import { exec } from "node:child_process";
import { promisify } from "node:util";
import { createOpenAI } from "@ai-sdk/openai";
import { LegacyOpenTelemetry, OpenTelemetry } from "@ai-sdk/otel";
import { OTLPTraceExporter } from "@opentelemetry/exporter-trace-otlp-http";
import { BatchSpanProcessor, NodeTracerProvider } from "@opentelemetry/sdk-trace-node";
import { registerTelemetry, stepCountIs, tool, ToolLoopAgent } from "ai";
import { z } from "zod";

const provider = new NodeTracerProvider({ spanProcessors: [new BatchSpanProcessor(new OTLPTraceExporter())] });
provider.register();
registerTelemetry(process.env.INSTRUMENTATION === "legacy" ? new LegacyOpenTelemetry() : new OpenTelemetry());

async function runShellCommand({ command }) {
  try {
    return (await promisify(exec)(`${command} 2>&1`)).stdout;
  } catch (error) {
    return `${error.stdout}Exit code ${error.code}`;
  }
}

const showsContent = process.env.CONTENT !== "off";
const agent = new ToolLoopAgent({
  model: createOpenAI({ baseURL: process.env.OPENAI_BASE_URL }).chat("gpt-5.5"),
  instructions: "You answer questions about files.",
  tools: {
    run_shell_command: tool({
      description: "Run a command in a shell and return its output.",
      inputSchema: z.object({ command: z.string() }),
      execute: runShellCommand,
    }),
  },
  stopWhen: stepCountIs(50),
  telemetry: { isEnabled: true, functionId: "line_counter", recordInputs: showsContent, recordOutputs: showsContent },
});
try {
  console.log((await agent.generate({ prompt: process.env.PROMPT })).text);
} finally {
  await provider.shutdown();
}

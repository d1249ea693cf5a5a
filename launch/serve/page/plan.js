// What of a model every board has: the tables of plan files, of all three kinds, as rows of parts.

import { count } from "./dom.js";

/**
 * The rows of a plan: {group, label, parts: [[device, number], …], weight, unit}; `weight` says how many layers or
 * nodes a row stands for, 0 where it takes no part in the overall share.
 */
export function rowsOf(plan) {
  if (!plan) return [];
  if (plan.segments) return plan.segments.map((segment) => segmentRow(plan.devices, segment));
  if (plan.words) return decoderRows(plan);
  return (plan.stages ?? []).flatMap(encoderRows);
}

/** Every device's share of the work, 0 to 1: the mean over the rows, by their weights. */
export function sharesOf(plan, rows = rowsOf(plan)) {
  const shares = new Map((plan?.devices ?? []).map((device) => [device, 0]));
  const weight = rows.reduce((sum, row) => sum + row.weight, 0);
  for (const row of rows) {
    const all = total(row);
    for (const [device, number] of row.parts) {
      if (all && weight) shares.set(device, (shares.get(device) ?? 0) + (number / all) * (row.weight / weight));
    }
  }
  return shares;
}

export const total = (row) => row.parts.reduce((sum, [, number]) => sum + number, 0);

/** A part as people read it: 22 of 32 heads; of shares percents. */
export function partWords(row, number) {
  const all = total(row);
  if (!Number.isInteger(all) || all === 1) return `${count((100 * number) / all)} %`;
  return row.unit ? `${count(number)} of ${count(all)} ${row.unit}` : `${count(number)} of ${count(all)}`;
}

function decoderRows(plan) {
  const rows = plan.stages.flatMap((stage) => {
    const group = layers(stage.layers);
    const weight = stage.layers[1] - stage.layers[0];
    return ["heads", "columns"].map((unit) => ({
      group, label: unit, unit, weight, parts: pairs(plan.devices, stage[unit]),
    }));
  });
  rows.push({ group: "Vocabulary", label: "words", unit: "words", weight: 0, parts: pairs(plan.devices, plan.words) });
  return rows;
}

const INNER = { attention: "heads", mlp: "ffn" };
const NAMES = { attention: "attention", mlp: "MLP" };

function encoderRows(stage) {
  return stage.layers.flatMap((run) => {
    const group = layers(run.layers) + (stage.sublayers ? ", in part" : "");
    const weight = run.layers[1] - run.layers[0];
    const rows = [];
    for (const block of ["attention", "mlp"].filter((name) => name in run)) {
      const table = run[block];
      const spans = table[INNER[block]] ?? table.sub_blocks;
      const unit = table.sub_blocks ? "sub-blocks" : block === "mlp" ? "columns" : "heads";
      const row = { group, weight, unit, label: `${NAMES[block]}: ${unit}` };
      if (spans) rows.push({ ...row, parts: pairs(stage.devices, spans.map(([start, stop]) => stop - start)) });
      else if (table.rows) rows.push({ ...row, unit: "", label: `${NAMES[block]}: rows`, parts: pairs(stage.devices, table.rows) });
      else rows.push({ ...row, unit: "", label: `${NAMES[block]}: all`, parts: stage.devices.map((name) => [name, 1]) });
    }
    return rows;
  });
}

function segmentRow(devices, segment) {
  const unit = ["rows", "channels", "tiles"].find((name) => segment[name]) ?? "";
  const [start, stop] = segment.nodes;
  return {
    group: "",
    label: segment.first ?? `nodes ${start}–${stop - 1}`,
    unit: unit || segment.cut || "rows",
    weight: stop - start,
    parts: pairs(devices, segment[unit] ?? segment.shares),
  };
}

const pairs = (devices, numbers) => devices.map((device, index) => [device, numbers[index] ?? 0]);

const layers = ([start, stop]) => (stop - start === 1 ? `Layer ${start}` : `Layers ${start}–${stop - 1}`);

// What of a model every board has: the tables of plan files as rows of parts.

import { count } from "./dom.js";

/**
 * The rows of a plan: {group, label, parts: [[device, number], …], weight, unit}; `weight` says how many layers or
 * nodes a row stands for, 0 where it takes no part in the overall share.
 */
export function rowsOf(plan) {
  const stages = plan?.stages ?? [];
  const rows = stages.flatMap((stage) => stage.runs.flatMap((run) => rowsOfRun(run, stage, stage.devices ?? plan.devices)));
  if (!plan?.head) return rows;
  return [...rows, { ...rowOf(plan.head, stages.at(-1).devices ?? plan.devices), group: "Vocabulary", weight: 0 }];
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

const NAMES = { attention: "attention", mlp: "MLP" };

function rowsOfRun(run, stage, devices) {
  const [start, stop] = run.layers ?? run.nodes;
  const weight = stop - start;
  if (run.nodes) return [{ ...rowOf(run, devices), label: run.first ?? `nodes ${start}–${stop - 1}`, weight }];
  const group = layers(run.layers) + (stage.sublayers ? ", in part" : "");
  return Object.keys(NAMES).filter((name) => name in run).map((name) => {
    const row = rowOf(run[name], devices);
    return { ...row, group, weight, label: ["heads", "columns"].includes(row.unit) ? row.unit : `${NAMES[name]}: ${row.label}` };
  });
}

/** Who has what of a table with a cut: of its heads or columns, else of what the cut shares out, else all. */
function rowOf(table, devices) {
  const unit = ["heads", "columns", table.cut].find((axis) => table[axis]);
  const parts = devices.map((device, index) => [device, unit ? table[unit][index] : 1]);
  const label = (unit ?? "all").replace("_", " ");
  return { group: "", label, unit: unit ? label : "", parts };
}

const layers = ([start, stop]) => (stop - start === 1 ? `Layer ${start}` : `Layers ${start}–${stop - 1}`);

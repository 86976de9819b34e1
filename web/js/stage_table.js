// The ranks that share the layers: which ones each has, how full its pages are, how much of the time it computes. One
// stage alone is the whole engine and needs no table.

import {fill, h} from './dom.js';
import {count, percent, seconds} from './format.js';

export class StageTable {
  constructor() {
    this.rows = h('tbody', {});
    this.note = h('p', {class: 'card-note'});
    const head = ['stage', 'layers', 'computing', 'waiting for rows', 'per step', 'pages used', 'where'];
    this.node = h('section', {class: 'card stages', 'aria-labelledby': 'stages-title', hidden: true},
      h('div', {class: 'card-head'}, h('h2', {id: 'stages-title'}, 'Stages'), this.note),
      h('div', {class: 'table-scroll', tabindex: 0, role: 'region', 'aria-labelledby': 'stages-title'},
        h('table', {}, h('thead', {}, h('tr', {}, head.map((name) => h('th', {scope: 'col'}, name)))), this.rows)));
  }

  // `before` was read `elapsedS` earlier.
  set(metrics, before, elapsedS) {
    const stages = metrics.samples('bam_stage_layers');
    this.node.hidden = stages.length < 2;
    if (this.node.hidden) return;
    const losses = metrics.value('bam_group_losses_total');
    this.note.textContent = losses > 0
      ? `${count(losses)} times a rank was lost, ${count(metrics.value('bam_replayed_requests_total'))} requests computed again`
      : 'no rank was lost';
    fill(this.rows, stages.map(({labels, value}) => {
      const {stage} = labels;
      const total = (name) => metrics.value(name, {stage});
      const since = (name) => total(name) - before.value(name, {stage});
      const share = (name) => (elapsedS > 0 ? percent(Math.min(1, Math.max(0, since(name) / elapsedS))) : '–');
      const steps = total('bam_stage_steps_total');
      const first = Number(labels.first_layer);
      return h('tr', {'data-stage': stage}, h('th', {scope: 'row'}, stage), h('td', {}, `${first} – ${first + value - 1}`),
        h('td', {}, share('bam_stage_busy_seconds_total')), h('td', {}, share('bam_stage_wait_seconds_total')),
        h('td', {}, steps > 0 ? seconds(total('bam_stage_busy_seconds_total') / steps) : '–'),
        h('td', {}, `${count(metrics.value('bam_stage_kv_pages', {stage, state: 'used'}))} of ${
          count(total('bam_stage_kv_pages'))}`),
        h('td', {}, labels.device));
    }));
  }
}

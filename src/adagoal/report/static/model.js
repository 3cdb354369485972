/* The empirical model of a run in the page: what a policy does there, its most likely path, and episodes of it. */

class Model {
  constructor(data) {
    this.data = data;
    this.actions = data.facts.reset;
    this.states = data.visits.length;
    this.fetched = {};
  }
  get known() { return this.data.row.length > 0 && this.data.facts.start !== null; }

  /* The table [T, S] of a goal's policy, null where it is not here. */
  policy(g) {
    const row = this.data.policy_row[g], [, stages, states] = this.data.shapes.policy;
    if (row >= 0) return this.data.policy.subarray(row * stages * states, (row + 1) * stages * states);
    return this.fetched[g] || null;
  }
  /* The policy that the run had for a goal at a moment, null without one; at the end it is the returned policy. */
  policyAt(g, moment) {
    const {moment_policy: tables, moment_policy_row: rows} = this.data, moments = this.data.moment_steps.length;
    if (moment === moments - 1) return this.policy(g);
    const row = rows ? rows[g * moments + moment] : -1;
    return row >= 0 ? tables.subarray(row * this.states, (row + 1) * this.states) : null;
  }
  /* What the policy does in a state at a stage: stage T is the reset, after which it begins again. */
  action(policy, state, stage) {
    const stages = Math.max(Math.round(policy.length / this.states), 1);
    if (stages > 1 && stage === stages) return this.actions;
    return policy[(stages > 1 ? stage : 0) * this.states + state];
  }
  next(policy, stage) {
    const stages = Math.max(Math.round(policy.length / this.states), 1);
    return stages > 1 ? (stage + 1) % (stages + 1) : 0;
  }
  /* First and last place of the successors of a pair; the reset leads to the start. */
  span(state, action) {
    const x = state * this.actions + action;
    return [this.data.row[x], this.data.row[x + 1]];
  }
  /* The most likely successor. Staying in the state comes last: the policy would only try again. */
  likely(state, action) {
    if (action >= this.actions) return this.data.facts.start;
    const [first, last] = this.span(state, action);
    let best = -1, most = 0;
    for (let k = first; k < last; k++) {
      const weight = this.data.to[k] === state ? 0.5 : this.data.count[k];
      if (weight > most) { most = weight; best = this.data.to[k]; }
    }
    return best;
  }
  draw(state, action) {
    if (action >= this.actions) return this.data.facts.start;
    const [first, last] = this.span(state, action);
    let total = 0;
    for (let k = first; k < last; k++) total += this.data.count[k];
    let left = Math.random() * total;
    for (let k = first; k < last; k++) { left -= this.data.count[k]; if (left < 0) return this.data.to[k]; }
    return last > first ? this.data.to[last - 1] : -1;
  }
  /* Most likely successors from the start until a state of the goal (a set), a circle, or what was never tried. */
  path(policy, aim) {
    const seen = new Set(), path = [this.data.facts.start];
    let stage = 0;
    while (!aim.has(path[path.length - 1]) && path.length <= this.states + 1) {
      const state = path[path.length - 1];
      if (seen.has(`${state} ${stage}`)) break;
      seen.add(`${state} ${stage}`);
      const successor = this.likely(state, this.action(policy, state, stage));
      if (successor < 0) break;
      stage = this.next(policy, stage);
      path.push(successor);
    }
    return path;
  }
  /* States that the policy may pass through, by what was observed; for a policy with stages, all stages together. */
  reachable(policy) {
    const seen = new Set([this.data.facts.start]), queue = [this.data.facts.start];
    const stages = Math.max(Math.round(policy.length / this.states), 1);
    for (let state = queue.pop(); state !== undefined; state = queue.pop()) for (let stage = 0; stage < stages; stage++) {
      const action = this.action(policy, state, stage);
      if (action >= this.actions) continue;
      const [first, last] = this.span(state, action);
      for (let k = first; k < last; k++) if (!seen.has(this.data.to[k])) { seen.add(this.data.to[k]); queue.push(this.data.to[k]); }
    }
    return seen;
  }
  /* One episode: the states in their order; it ends at the goal, after `most` steps, or where nothing is known. In a run
     with probabilities the reset ends it, too. */
  *episode(policy, aim, most) {
    let state = this.data.facts.start, stage = 0;
    yield state;
    for (let steps = 0; steps < most && !aim.has(state); steps++) {
      const action = this.action(policy, state, stage);
      if (this.data.facts.within && action >= this.actions) return;
      state = this.draw(state, action);
      stage = this.next(policy, stage);
      if (state < 0) return;
      yield state;
    }
  }
}

// The other side of a BullMQ queue, in Node.js:
//
//     node bullmq_node.cjs work URL QUEUE COUNT      one JSON line per job it ran; jobs named "broken" fail
//     node bullmq_node.cjs add URL QUEUE JOBS        JOBS: JSON, a list of {name, data, opts}; prints their ids
//     node bullmq_node.cjs repeat URL QUEUE EVERY    starts a job scheduler; EVERY in milliseconds
//     node bullmq_node.cjs workers URL QUEUE         the number of workers that BullMQ sees
const { Queue, Worker } = require("bullmq");

const [mode, url, name, argument] = process.argv.slice(2);
const { hostname, port } = new URL(url);
const connection = { host: hostname, port: Number(port) };

const say = (value) => process.stdout.write(JSON.stringify(value) + "\n");

async function work(count) {
  let left = count;
  const worker = new Worker(
    name,
    async (job) => {
      if (job.name === "broken") throw new Error("no such mailbox");
      return { seen: job.data };
    },
    { connection, concurrency: 1 },
  );
  const done = new Promise((resolve) => {
    const count = (job) => {
      const { id, name, data, opts, attemptsMade, priority } = job;
      say({ id, name, data, opts, attemptsMade, priority });
      if (--left === 0) resolve();
    };
    worker.on("completed", count);
    worker.on("failed", count);
  });
  await done;
  await worker.close();
}

async function withQueue(use) {
  const queue = new Queue(name, { connection });
  say(await use(queue));
  await queue.close();
}

const modes = {
  work: () => work(Number(argument)),
  add: () => withQueue(async (queue) => (await queue.addBulk(JSON.parse(argument))).map((job) => job.id)),
  repeat: () => withQueue((queue) => queue.upsertJobScheduler("tick", { every: Number(argument) }, { name: "tick" })),
  workers: () => withQueue((queue) => queue.getWorkersCount()),
};
modes[mode]().catch((error) => {
  process.stderr.write(`${error.stack}\n`);
  process.exit(1);
});

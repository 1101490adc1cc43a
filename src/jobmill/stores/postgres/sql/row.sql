-- What a change must know of a job: columns, put in place of {row}.
jobs.id, jobs.name, jobs.queue, jobs.state, jobs.errors, jobs.options

; The native half of the CPU backend: a thread pool, and the loop that runs a program on it.
;
; A program is a list of launches, and of lists to repeat. A launch is a kernel and the number of
; grid points it has. The calling thread (the *caller*) can finish every launch alone. Workers only
; help: each takes a seat at the current launch, runs blocks until none are left, and leaves. So
; nothing ever waits for a worker that has not joined: a worker that is asleep, descheduled, lost in
; a fork or could not be created costs speed, never a result.
;
; A launch is shared through one word, @state = seats still free | workers at work << 16:
;
;   caller   write @job; seats := n; bump @generation; wake sleepers; run blocks;
;            seats := 0 (nobody can join any more); wait until nobody is at work
;   worker   wait for a new @generation; seats -= 1 and at work += 1, if there is a seat;
;            run blocks; at work -= 1, and wake the caller if it sleeps
;
; Blocks of the grid are handed out by an atomic counter. @job is only written while @state is 0, so
; whoever holds a seat reads a consistent job. One caller at a time has the pool (@lock); a second
; one does not wait but runs its launch alone.
;
; runtime.py appends what differs between chips: @SYS_futex and @relax (the pause of a spin loop).

; kernel(args, begin, end, scratch); args; grid points; points taken at a time; bytes of scratch
%job = type { ptr, ptr, i64, i64, i64 }
; 1 while a caller uses it; memory; its size
%scratch = type { i32, ptr, i64 }

; How long a waiting thread spins before it sleeps: longer than the gap between two launches of a
; program, too short for another library's threads to notice.
@spin_nanoseconds = internal constant i64 30000

; What different threads write lies in different pairs of cache lines.
@job = internal global %job zeroinitializer, align 128
@next = internal global i64 0, align 128              ; the first grid point not yet handed out
@state = internal global i32 0, align 128             ; free seats | workers at work << 16
@generation = internal global i32 0, align 128        ; counts launches
@idle_workers = internal global i32 0, align 128      ; workers asleep on @generation
@idle_callers = internal global i32 0, align 128      ; callers asleep on @state: 0 or 1
@lock = internal global i32 0, align 128              ; 1 while a caller has the pool
@workers = internal global i64 0                      ; threads created; guarded by @lock

; Scratch of callers. A table, because code loaded at run time has no cheap thread-local storage.
@scratches = internal global [64 x %scratch] zeroinitializer, align 128

declare i64 @syscall(i64, ...)
declare i32 @clock_gettime(i32, ptr)
declare i32 @pthread_create(ptr, ptr, ptr, ptr)
declare i32 @pthread_detach(i64)
declare i32 @pthread_sigmask(i32, ptr, ptr)
declare i32 @sigfillset(ptr)
declare i32 @posix_memalign(ptr, i64, i64)
declare void @free(ptr)
declare i32 @madvise(ptr, i64, i32)
declare i64 @llvm.smin.i64(i64, i64)
declare i64 @llvm.smax.i64(i64, i64)
declare i64 @llvm.umin.i64(i64, i64)

; The text is close to the machine code it should become, and kernels are where the time goes:
; unoptimised it compiles four times faster (11 ms), and a launch of grid 1 takes 10 ns either way.
attributes #0 = { nounwind noinline optnone }

; ---- programs

; Run a program: [n_records, scratch_bytes, records...]. A record is one of
;   launch  [kernel, grid_fn, n_args, slots...]
;   repeat  [0, count, n_cursors, n_turns, n_records, n_words, cursors..., turns..., records...]
; Returns 0, or 1 if there is no memory for scratch; then nothing has been run.
define i32 @genesis_run(ptr %program, ptr %frame, i64 %threads) #0 {
  %failed = call i32 @run(ptr %program, ptr %frame, i64 %threads, i64 0)
  ret i32 %failed
}

; Run a program, and note what its records take: %times has as many words as the program, all 0, and
; those at the place of a record become [runs, nanoseconds in all, start of the first, its end].
define i32 @genesis_time(ptr %program, ptr %frame, i64 %threads, ptr %times) #0 {
  %from = ptrtoint ptr %program to i64
  %to = ptrtoint ptr %times to i64
  %notes = sub i64 %to, %from
  %failed = call i32 @run(ptr %program, ptr %frame, i64 %threads, i64 %notes)
  ret i32 %failed
}

; %notes: how far from a record its times are, in bytes; 0 if nobody wants to know them.
define internal i32 @run(ptr %program, ptr %frame, i64 %threads, i64 %notes) #0 {
entry:
  %bytes.at = getelementptr i64, ptr %program, i64 1
  %bytes = load i64, ptr %bytes.at
  %count = load i64, ptr %program
  %records = getelementptr i64, ptr %program, i64 2
  %needs.scratch = icmp ne i64 %bytes, 0
  br i1 %needs.scratch, label %claim, label %plain

plain:
  call void @run_records(ptr %records, i64 %count, ptr %frame, i64 %threads, ptr null, i64 0,
                         i64 %notes)
  ret i32 0

claim:
  %scratch = call ptr @claim_scratch()
  %enough = call i1 @grow(ptr %scratch, i64 %bytes)
  br i1 %enough, label %run, label %release

run:
  %memory.at = getelementptr %scratch, ptr %scratch, i64 0, i32 1
  %memory = load ptr, ptr %memory.at
  call void @run_records(ptr %records, i64 %count, ptr %frame, i64 %threads, ptr %memory,
                         i64 %bytes, i64 %notes)
  br label %release

release:
  %failed = phi i32 [ 1, %claim ], [ 0, %run ]
  store atomic i32 0, ptr %scratch release, align 4   ; busy is the first field
  ret i32 %failed
}

; `count` records in order.
define internal void @run_records(ptr %first, i64 %count, ptr %frame, i64 %threads, ptr %memory,
                                  i64 %bytes, i64 %notes) #0 {
entry:
  %timed = icmp ne i64 %notes, 0
  br label %loop

loop:
  %record = phi ptr [ %first, %entry ], [ %record.next, %ran ], [ %record.next, %note ]
  %i = phi i64 [ 0, %entry ], [ %i.next, %ran ], [ %i.next, %note ]
  %more = icmp slt i64 %i, %count
  br i1 %more, label %step, label %done

step:
  %i.next = add i64 %i, 1
  br i1 %timed, label %watch, label %run

watch:
  %now = call i64 @now()
  br label %run

run:
  %start = phi i64 [ 0, %step ], [ %now, %watch ]
  %kernel = load i64, ptr %record
  %repeats = icmp eq i64 %kernel, 0
  br i1 %repeats, label %repeat, label %launch

launch:
  %launch.next = call ptr @launch(ptr %record, ptr %frame, i64 %threads, ptr %memory, i64 %bytes)
  br label %ran

repeat:
  %repeat.next = call ptr @repeat(ptr %record, ptr %frame, i64 %threads, ptr %memory, i64 %bytes,
                                  i64 %notes)
  br label %ran

ran:
  %record.next = phi ptr [ %launch.next, %launch ], [ %repeat.next, %repeat ]
  br i1 %timed, label %note, label %loop

note:
  %end = call i64 @now()
  %note.at = getelementptr i8, ptr %record, i64 %notes
  call void @note(ptr %note.at, i64 %start, i64 %end)
  br label %loop

done:
  ret void
}

; Add a run to [runs, nanoseconds in all, start of the first, its end].
define internal void @note(ptr %note, i64 %start, i64 %end) #0 {
entry:
  %total.at = getelementptr i64, ptr %note, i64 1
  %start.at = getelementptr i64, ptr %note, i64 2
  %end.at = getelementptr i64, ptr %note, i64 3
  %runs = load i64, ptr %note
  %runs.next = add i64 %runs, 1
  store i64 %runs.next, ptr %note
  %spent = sub i64 %end, %start
  %total = load i64, ptr %total.at
  %total.next = add i64 %total, %spent
  store i64 %total.next, ptr %total.at
  %first = icmp eq i64 %runs, 0
  br i1 %first, label %keep, label %done

keep:
  store i64 %start, ptr %start.at
  store i64 %end, ptr %end.at
  br label %done

done:
  ret void
}

; Run a repeat record and return the next. What moves is in the frame:
;   cursor [slot, base, start, stride]   slot := base + start; after a repetition slot += stride
;   turn [current, first, next, spare]   current := first; after a repetition current := next, and
;                                        next and spare are exchanged
define internal ptr @repeat(ptr %record, ptr %frame, i64 %threads, ptr %memory, i64 %bytes,
                            i64 %notes) #0 {
entry:
  %count.slot = getelementptr i64, ptr %record, i64 1
  %count.at = call ptr @named(ptr %count.slot, ptr %frame)
  %count = load i64, ptr %count.at
  %n.cursors.at = getelementptr i64, ptr %record, i64 2
  %n.cursors = load i64, ptr %n.cursors.at
  %n.turns.at = getelementptr i64, ptr %record, i64 3
  %n.turns = load i64, ptr %n.turns.at
  %n.records.at = getelementptr i64, ptr %record, i64 4
  %n.records = load i64, ptr %n.records.at
  %n.words.at = getelementptr i64, ptr %record, i64 5
  %n.words = load i64, ptr %n.words.at
  %cursors = getelementptr i64, ptr %record, i64 6
  %turns = getelementptr [4 x i64], ptr %cursors, i64 %n.cursors
  %records = getelementptr [4 x i64], ptr %turns, i64 %n.turns
  %record.next = getelementptr i64, ptr %records, i64 %n.words
  call void @each(ptr @place, ptr %cursors, i64 %n.cursors, ptr %frame)
  call void @each(ptr @begin, ptr %turns, i64 %n.turns, ptr %frame)
  br label %loop

loop:
  %i = phi i64 [ 0, %entry ], [ %i.next, %step ]
  %more = icmp slt i64 %i, %count
  br i1 %more, label %step, label %done

step:
  call void @run_records(ptr %records, i64 %n.records, ptr %frame, i64 %threads, ptr %memory,
                         i64 %bytes, i64 %notes)
  call void @each(ptr @advance, ptr %cursors, i64 %n.cursors, ptr %frame)
  call void @each(ptr @turn, ptr %turns, i64 %n.turns, ptr %frame)
  %i.next = add i64 %i, 1
  br label %loop

done:
  ret ptr %record.next
}

; Where in the frame the slot is that a word of a record names.
define internal ptr @named(ptr %word, ptr %frame) #0 {
  %slot = load i64, ptr %word
  %at = getelementptr i64, ptr %frame, i64 %slot
  ret ptr %at
}

; Call action(a, b, c, d) for every quadruple of slots, with their places in the frame.
define internal void @each(ptr %action, ptr %quads, i64 %count, ptr %frame) #0 {
entry:
  br label %loop

loop:
  %i = phi i64 [ 0, %entry ], [ %i.next, %step ]
  %more = icmp slt i64 %i, %count
  br i1 %more, label %step, label %done

step:
  %quad = getelementptr [4 x i64], ptr %quads, i64 %i
  %a = call ptr @named(ptr %quad, ptr %frame)
  %b.slot = getelementptr i64, ptr %quad, i64 1
  %b = call ptr @named(ptr %b.slot, ptr %frame)
  %c.slot = getelementptr i64, ptr %quad, i64 2
  %c = call ptr @named(ptr %c.slot, ptr %frame)
  %d.slot = getelementptr i64, ptr %quad, i64 3
  %d = call ptr @named(ptr %d.slot, ptr %frame)
  call void %action(ptr %a, ptr %b, ptr %c, ptr %d)
  %i.next = add i64 %i, 1
  br label %loop

done:
  ret void
}

define internal void @place(ptr %slot, ptr %base, ptr %start, ptr %stride) #0 {
  %address = load i64, ptr %base
  %bytes = load i64, ptr %start
  %first = add i64 %address, %bytes
  store i64 %first, ptr %slot
  ret void
}

define internal void @advance(ptr %slot, ptr %base, ptr %start, ptr %stride) #0 {
  %address = load i64, ptr %slot
  %bytes = load i64, ptr %stride
  %after = add i64 %address, %bytes
  store i64 %after, ptr %slot
  ret void
}

define internal void @begin(ptr %current, ptr %first, ptr %next, ptr %spare) #0 {
  %address = load i64, ptr %first
  store i64 %address, ptr %current
  ret void
}

define internal void @turn(ptr %current, ptr %first, ptr %next, ptr %spare) #0 {
  %written = load i64, ptr %next
  %free = load i64, ptr %spare
  store i64 %written, ptr %current
  store i64 %free, ptr %next
  store i64 %written, ptr %spare
  ret void
}

; Run one launch record and return the next. Arguments are gathered on this function's stack, where
; they stay until every block is done.
define internal ptr @launch(ptr %record, ptr %frame, i64 %threads, ptr %memory, i64 %bytes) #0 {
entry:
  %kernel = load ptr, ptr %record
  %grid_fn.at = getelementptr i64, ptr %record, i64 1
  %grid_fn = load ptr, ptr %grid_fn.at
  %n.at = getelementptr i64, ptr %record, i64 2
  %n = load i64, ptr %n.at
  %slots = getelementptr i64, ptr %record, i64 3
  %record.next = getelementptr i64, ptr %slots, i64 %n
  %args = alloca i64, i64 %n, align 16
  br label %gather

gather:
  %j = phi i64 [ 0, %entry ], [ %j.next, %copy ]
  %more = icmp slt i64 %j, %n
  br i1 %more, label %copy, label %size

copy:
  %slot.at = getelementptr i64, ptr %slots, i64 %j
  %slot = load i64, ptr %slot.at
  %value.at = getelementptr i64, ptr %frame, i64 %slot
  %value = load i64, ptr %value.at
  %arg = getelementptr i64, ptr %args, i64 %j
  store i64 %value, ptr %arg
  %j.next = add i64 %j, 1
  br label %gather

size:
  %grid = call i64 %grid_fn(ptr %args)
  %width = call i64 @llvm.smin.i64(i64 %grid, i64 %threads)
  %parallel = icmp sgt i64 %width, 1
  br i1 %parallel, label %acquire, label %alone

acquire:
  %taken = atomicrmw xchg ptr @lock, i32 1 acquire
  %got = icmp eq i32 %taken, 0
  br i1 %got, label %share, label %alone

share:
  call void @share(ptr %kernel, ptr %args, i64 %grid, i64 %width, ptr %memory, i64 %bytes)
  store atomic i32 0, ptr @lock release, align 4
  ret ptr %record.next

alone:
  %any = icmp sgt i64 %grid, 0
  br i1 %any, label %run, label %done

run:
  call void %kernel(ptr %args, i64 0, i64 %grid, ptr %memory)
  br label %done

done:
  ret ptr %record.next
}

; ---- the pool

; The caller's side of a launch on `width` threads, itself included. Needs @lock.
define internal void @share(ptr %kernel, ptr %args, i64 %grid, i64 %width, ptr %memory,
                            i64 %bytes) #0 {
entry:
  %helpers = sub i64 %width, 1
  %seats = call i64 @llvm.umin.i64(i64 %helpers, i64 32767)
  call void @start_workers(i64 %seats)

  ; About 8 turns a thread: few enough to cost nothing, enough to even out unequal blocks.
  %turns = mul i64 %width, 8
  %share = sdiv i64 %grid, %turns
  %chunk = call i64 @llvm.smax.i64(i64 %share, i64 1)
  %job.0 = insertvalue %job poison, ptr %kernel, 0
  %job.1 = insertvalue %job %job.0, ptr %args, 1
  %job.2 = insertvalue %job %job.1, i64 %grid, 2
  %job.3 = insertvalue %job %job.2, i64 %chunk, 3
  %job.4 = insertvalue %job %job.3, i64 %bytes, 4
  store %job %job.4, ptr @job
  store i64 0, ptr @next

  %open = trunc i64 %seats to i32
  store atomic i32 %open, ptr @state release, align 4
  %generation = atomicrmw add ptr @generation, i32 1 seq_cst
  call void @wake(ptr @generation, ptr @idle_workers, i32 %open)
  call void @run_blocks(ptr %memory)
  %closing = atomicrmw and ptr @state, i32 -65536 acq_rel
  br label %wait

wait:
  %state = load atomic i32, ptr @state acquire, align 4
  %finished = icmp eq i32 %state, 0
  br i1 %finished, label %done, label %sleep

sleep:
  call void @await_change(ptr @state, i32 %state, ptr @idle_callers)
  br label %wait

done:
  ret void
}

; A worker's life: help with a launch if there is a seat, then wait for the next one. It reads
; @generation before it looks for a seat, so a launch announced in between is not slept through.
define internal ptr @worker(ptr %unused) #0 {
entry:
  %scratch = alloca %scratch
  store %scratch zeroinitializer, ptr %scratch
  %memory.at = getelementptr %scratch, ptr %scratch, i64 0, i32 1
  br label %loop

loop:
  %seen = load atomic i32, ptr @generation acquire, align 4
  %joined = call i1 @join()
  br i1 %joined, label %prepare, label %rest

prepare:
  %bytes.at = getelementptr %job, ptr @job, i64 0, i32 4
  %bytes = load i64, ptr %bytes.at
  %able = call i1 @grow(ptr %scratch, i64 %bytes)
  br i1 %able, label %work, label %leave

work:
  %memory = load ptr, ptr %memory.at
  call void @run_blocks(ptr %memory)
  br label %leave

leave:
  %before = atomicrmw sub ptr @state, i32 65536 seq_cst
  %last = icmp eq i32 %before, 65536                  ; closed, and nobody else is at work
  br i1 %last, label %report, label %rest

report:
  call void @wake(ptr @state, ptr @idle_callers, i32 1)
  br label %rest

rest:
  call void @await_change(ptr @generation, i32 %seen, ptr @idle_workers)
  br label %loop
}

; Take a seat at the current launch, if one is free.
define internal i1 @join() #0 {
entry:
  %first = load atomic i32, ptr @state acquire, align 4
  br label %loop

loop:
  %state = phi i32 [ %first, %entry ], [ %found, %try ]
  %seats = and i32 %state, 65535
  %full = icmp eq i32 %seats, 0
  br i1 %full, label %done, label %try

try:
  %seated = add i32 %state, 65535                     ; one more at work, one seat fewer
  %result = cmpxchg ptr @state, i32 %state, i32 %seated acq_rel acquire
  %found = extractvalue { i32, i1 } %result, 0
  %won = extractvalue { i32, i1 } %result, 1
  br i1 %won, label %done, label %loop

done:
  %joined = phi i1 [ false, %loop ], [ true, %try ]
  ret i1 %joined
}

; Run blocks of the current job until all are handed out.
define internal void @run_blocks(ptr %memory) #0 {
entry:
  %job = load %job, ptr @job
  %kernel = extractvalue %job %job, 0
  %args = extractvalue %job %job, 1
  %grid = extractvalue %job %job, 2
  %chunk = extractvalue %job %job, 3
  br label %loop

loop:
  %begin = atomicrmw add ptr @next, i64 %chunk monotonic
  %more = icmp slt i64 %begin, %grid
  br i1 %more, label %run, label %done

run:
  %stop = add i64 %begin, %chunk
  %end = call i64 @llvm.smin.i64(i64 %stop, i64 %grid)
  call void %kernel(ptr %args, i64 %begin, i64 %end, ptr %memory)
  br label %loop

done:
  ret void
}

; Bring the pool to `wanted` workers. They are detached, so they never hold up the end of the
; process, and block all signals, so that Ctrl-C reaches Python's thread. Failing to create one is
; no error: the caller does its share. Needs @lock.
define internal void @start_workers(i64 %wanted) #0 {
entry:
  %all = alloca [16 x i64]                            ; sigset_t
  %old = alloca [16 x i64]
  %thread = alloca i64
  %have = load i64, ptr @workers
  %enough = icmp sge i64 %have, %wanted
  br i1 %enough, label %done, label %block

block:
  %filled = call i32 @sigfillset(ptr %all)
  %blocked = call i32 @pthread_sigmask(i32 2, ptr %all, ptr %old)  ; SIG_SETMASK; inherited
  br label %loop

loop:
  %count = phi i64 [ %have, %block ], [ %count.next, %created ]
  %missing = icmp slt i64 %count, %wanted
  br i1 %missing, label %create, label %unblock

create:
  %error = call i32 @pthread_create(ptr %thread, ptr null, ptr @worker, ptr null)
  %ok = icmp eq i32 %error, 0
  br i1 %ok, label %created, label %unblock

created:
  %id = load i64, ptr %thread
  %detached = call i32 @pthread_detach(i64 %id)
  %count.next = add i64 %count, 1
  store i64 %count.next, ptr @workers
  br label %loop

unblock:
  %unblocked = call i32 @pthread_sigmask(i32 2, ptr %old, ptr null)
  br label %done

done:
  ret void
}

; In the child of a fork only the forking thread exists: nobody is at work, idle or busy. The
; scratch memory of threads that are gone is kept for reuse.
define void @genesis_after_fork() #0 {
entry:
  store i32 0, ptr @state
  store i32 0, ptr @idle_workers
  store i32 0, ptr @idle_callers
  store i32 0, ptr @lock
  store i64 0, ptr @workers
  br label %loop

loop:
  %i = phi i64 [ 0, %entry ], [ %i.next, %loop ]
  %busy = getelementptr [64 x %scratch], ptr @scratches, i64 0, i64 %i, i32 0
  store i32 0, ptr %busy
  %i.next = add i64 %i, 1
  %more = icmp slt i64 %i.next, 64
  br i1 %more, label %loop, label %done

done:
  ret void
}

; ---- waiting

; Return when *word is not `old`: spin for a while, then sleep. A sleeper is counted before the
; kernel compares the word again, and @wake looks at the count after the word has changed, so one
; of the two always notices the other.
define internal void @await_change(ptr %word, i32 %old, ptr %sleepers) #0 {
entry:
  %start = call i64 @now()
  br label %spin

spin:
  %i = phi i64 [ 0, %entry ], [ %i.next, %pause ], [ %i.next, %clock ]
  %value = load atomic i32, ptr %word acquire, align 4
  %changed = icmp ne i32 %value, %old
  br i1 %changed, label %done, label %pause

pause:
  call void @relax()
  %i.next = add i64 %i, 1
  %phase = and i64 %i.next, 31
  %glance = icmp eq i64 %phase, 0                     ; the clock costs as much as the pause
  br i1 %glance, label %clock, label %spin

clock:
  %time = call i64 @now()
  %spent = sub i64 %time, %start
  %budget = load i64, ptr @spin_nanoseconds
  %patient = icmp slt i64 %spent, %budget
  br i1 %patient, label %spin, label %count

count:
  %before = atomicrmw add ptr %sleepers, i32 1 seq_cst
  br label %check

check:
  %current = load atomic i32, ptr %word acquire, align 4
  %moved = icmp ne i32 %current, %old
  br i1 %moved, label %woken, label %sleep

sleep:
  %wait.number = load i64, ptr @SYS_futex             ; 128: FUTEX_WAIT_PRIVATE
  %slept = call i64 (i64, ...) @syscall(i64 %wait.number, ptr %word, i64 128, i32 %old, ptr null)
  br label %check

woken:
  %after = atomicrmw sub ptr %sleepers, i32 1 seq_cst
  br label %done

done:
  ret void
}

; Wake up to `count` of the threads that sleep on `word`, which has changed.
define internal void @wake(ptr %word, ptr %sleepers, i32 %count) #0 {
entry:
  %asleep = load atomic i32, ptr %sleepers seq_cst, align 4
  %any = icmp sgt i32 %asleep, 0
  br i1 %any, label %call, label %done

call:
  %wake.number = load i64, ptr @SYS_futex             ; 129: FUTEX_WAKE_PRIVATE
  %woken = call i64 (i64, ...) @syscall(i64 %wake.number, ptr %word, i64 129, i32 %count)
  br label %done

done:
  ret void
}

; Monotonic time in nanoseconds.
define internal i64 @now() #0 {
  %time = alloca { i64, i64 }
  %error = call i32 @clock_gettime(i32 1, ptr %time)  ; CLOCK_MONOTONIC
  %seconds = load i64, ptr %time
  %nanoseconds.at = getelementptr { i64, i64 }, ptr %time, i64 0, i32 1
  %nanoseconds = load i64, ptr %nanoseconds.at
  %scaled = mul i64 %seconds, 1000000000
  %total = add i64 %scaled, %nanoseconds
  ret i64 %total
}

; ---- scratch

; A scratch nobody else uses, marked busy. With more callers than entries, spin until one is free.
define internal ptr @claim_scratch() #0 {
entry:
  br label %loop

loop:
  %i = phi i64 [ 0, %entry ], [ %i.next, %occupied ]
  %entry.at = getelementptr [64 x %scratch], ptr @scratches, i64 0, i64 %i
  %busy = atomicrmw xchg ptr %entry.at, i32 1 acquire
  %free = icmp eq i32 %busy, 0
  br i1 %free, label %done, label %occupied

occupied:
  call void @relax()
  %after = add i64 %i, 1
  %i.next = and i64 %after, 63
  br label %loop

done:
  ret ptr %entry.at
}

; Make a scratch hold at least `bytes`; false if there is no memory. Contents are not kept. From
; 2 MiB on it is made of huge pages: packing buffers live here.
define internal i1 @grow(ptr %scratch, i64 %bytes) #0 {
entry:
  %memory.at = getelementptr %scratch, ptr %scratch, i64 0, i32 1
  %size.at = getelementptr %scratch, ptr %scratch, i64 0, i32 2
  %size = load i64, ptr %size.at
  %enough = icmp uge i64 %size, %bytes
  br i1 %enough, label %success, label %replace

replace:
  %old = load ptr, ptr %memory.at
  call void @free(ptr %old)
  store ptr null, ptr %memory.at
  store i64 0, ptr %size.at
  %large = icmp uge i64 %bytes, 2097152
  %alignment = select i1 %large, i64 2097152, i64 64
  %negative = sub i64 0, %alignment
  %rest = sub i64 %alignment, 1
  %padded = add i64 %bytes, %rest
  %rounded = and i64 %padded, %negative
  %error = call i32 @posix_memalign(ptr %memory.at, i64 %alignment, i64 %rounded)
  %ok = icmp eq i32 %error, 0
  br i1 %ok, label %allocated, label %failure

allocated:
  store i64 %rounded, ptr %size.at
  br i1 %large, label %huge, label %success

huge:
  %new = load ptr, ptr %memory.at
  %advised = call i32 @madvise(ptr %new, i64 %rounded, i32 14)  ; MADV_HUGEPAGE
  br label %success

success:
  ret i1 true

failure:
  ret i1 false
}
